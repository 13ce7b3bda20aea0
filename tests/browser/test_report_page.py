"""The report in Chromium: it asks for nothing, fits, plays, and can be read in light and dark."""

from itertools import pairwise

import pytest

SIZES = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]

# Of each element with text of its own: the contrast of the text to what is painted behind it.
CONTRASTS = """() => {
  const channels = (text) => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((c) => {
      const share = c / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const style = getComputedStyle(e).backgroundColor;
      const isClear = style === "rgba(0, 0, 0, 0)" || style === "transparent";
      if (!isClear) layers.push(style);
      if (!isClear && !(style.startsWith("rgba") || style.includes("/")) ) break;
    }
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    canvas.fillStyle = "white";
    canvas.fillRect(0, 0, 1, 1);
    for (const layer of layers.reverse()) {
      canvas.fillStyle = layer;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (["SCRIPT", "STYLE", "TITLE", "title"].includes(element.tagName)) continue;
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const isSvg = element instanceof SVGElement;
    const color = luminance(channels(isSvg ? style.fill : style.color));
    const ground = luminance(behind(element));
    const ratio = (Math.max(color, ground) + 0.05) / (Math.min(color, ground) + 0.05);
    found.push([ratio, `${element.tagName} ${element.textContent.trim().slice(0, 40)}`]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}"""


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_page_fits_and_asks_for_nothing(visit, report_file, width, scheme):
    opened = visit(width, scheme)
    opened.page.wait_for_load_state("networkidle")
    size = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert size[0] <= size[1] == width
    outside = [url for url in opened.requests if not url.startswith("data:")]
    assert outside == [report_file.as_uri()]
    assert opened.messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast(visit, scheme):
    contrasts = visit(1280, scheme).page.evaluate(CONTRASTS)
    assert len(contrasts) > 200
    assert contrasts[0][0] >= 4.5, contrasts[:5]


def test_dark_scheme_changes_the_colours(visit):
    ask = """[getComputedStyle(document.body).backgroundColor,
      getComputedStyle(document.querySelector('.curve.valid')).stroke]"""
    light, dark = (visit(800, scheme).page.evaluate(ask) for scheme in ("light", "dark"))
    assert light[0] != dark[0]
    assert light[1] != dark[1]


def test_wide_tables_scroll_inside(visit):
    page = visit(390).page
    table = page.locator("#results .scroll").first
    assert table.evaluate("e => e.scrollWidth > e.clientWidth")
    table.focus()
    assert table.evaluate("e => e === document.activeElement"), "reachable by keyboard"


def test_audio_plays(visit):
    page = visit().page
    durations = page.evaluate("""async () => {
      const clips = [...document.querySelectorAll("audio")];
      await Promise.all(clips.map((clip) => clip.readyState >= 1 ||
        new Promise((ready) => clip.addEventListener("loadedmetadata", ready))));
      return clips.map((clip) => clip.duration);
    }""")
    assert len(durations) > 4
    assert all(0.4 < duration < 4 for duration in durations)
    for kind in ("wav", "mpeg"):
        clip = page.locator(f"audio[src^='data:audio/{kind}']").first
        clip.evaluate("clip => { clip.loop = true; return clip.play(); }")
        # The length is told even by clips that cannot be played.
        moved = "clip => clip.currentTime > 0.05 || clip.error !== null"
        page.wait_for_function(moved, arg=clip.element_handle())
        assert clip.evaluate("clip => clip.error && clip.error.message") is None


def test_one_clip_plays_at_a_time(visit):
    page = visit().page
    first, second = page.locator("audio").all()[:2]
    for clip in (first, second):
        clip.evaluate("clip => { clip.loop = true; return clip.play(); }")
    page.wait_for_function("clip => clip.paused", arg=first.element_handle())
    assert not second.evaluate("clip => clip.paused")


def test_hypothesis_with_a_script_is_text(visit):
    page = visit().page
    assert "hacked" not in page.title()
    assert page.locator("text=<script>document.title='hacked'</script>").count() >= 1
    assert page.locator("script").count() == 1


def test_no_other_script_may_run(visit):
    opened = visit()
    opened.page.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "document.title = 'hacked'";
      document.body.append(script);
    }""")
    assert "hacked" not in opened.page.title()


def test_groups_are_sorted_on_a_click(visit):
    page = visit().page
    table = page.locator("table.sortable").first

    def column(number):
        return table.locator(f"tbody tr > :nth-child({number})").all_inner_texts()

    rates = [float(rate) for rate in column(2)]
    assert rates == sorted(rates, reverse=True)
    table.get_by_role("button", name="voice").click()
    assert column(1) == sorted(column(1))
    assert table.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    table.get_by_role("button", name="voice").press("Enter")
    assert column(1) == sorted(column(1), reverse=True)
    table.get_by_role("button", name="WER %").click()
    assert [float(rate) for rate in column(2)] == rates


def test_page_is_complete_without_its_script(visit):
    page = visit(java_script_enabled=False).page
    assert page.locator("table.sortable tbody tr").count() > 5
    assert page.locator("audio[controls]").count() > 4


def test_pictures_tables_and_headings_have_names(visit):
    page = visit().page
    assert page.locator("svg[role=img]:not([aria-label])").count() == 0
    assert page.locator("audio:not([aria-label])").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("thead th:not([scope]):not(.wide)").count() == 0
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_links_of_the_head_lead_to_parts(visit):
    page = visit().page
    targets = page.locator("nav a").evaluate_all("links => links.map(a => a.getAttribute('href'))")
    assert len(targets) == 7
    assert all(page.locator(target).count() == 1 for target in targets)


def test_printed_page_is_light_and_has_no_players(visit, tmp_path):
    page = visit(scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert not page.locator("audio").first.is_visible()
    assert page.pdf(path=tmp_path / "report.pdf").startswith(b"%PDF")
