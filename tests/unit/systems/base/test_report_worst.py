from espnet3.systems.base.report import Aligner, Cell


def test_words_are_cut_as_the_metric_cut_them():
    align = Aligner("words", {"clean_types": ["lower", "no_punctuation"]})
    cells = align("The cat sat.", "a cat SAT down").cells
    assert cells == [
        Cell("S", "the", "a"),
        Cell("", "cat", "cat"),
        Cell("", "sat", "sat"),
        Cell("I", "", "down"),
    ]
    assert list(align.errors("one two", "one")) == [Cell("D", "two", "")]


def test_characters_without_blanks():
    cells = Aligner("characters", {"count_spaces": False})("a b", "ac").cells
    assert [cell.kind for cell in cells] == ["", "S"]


def test_a_decoder_that_repeats_itself_does_not_fill_the_page():
    alignment = Aligner("words", {})("a b", "a " * 50_000)
    assert len(alignment.cells) == 300
    assert alignment.n_hidden == 50_000 - 300
