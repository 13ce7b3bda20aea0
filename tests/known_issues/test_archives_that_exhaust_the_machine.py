"""Archives of packed models that are small, and would fill memory or disk: each is refused.

They are extracted by a process that may not have more than 300 MB.
"""

import gzip
import io
import os
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile

import pytest

from espnet3.components.data.errors import DataError
from espnet3.components.decoding.ngram import NGram
from espnet3.config.trust import PackedModelError
from espnet3.systems.asr.packed_archive import extract

MEGABYTE = 1_000_000
PROGRAM = """\
import resource, sys
from pathlib import Path
from espnet3.systems.asr.packed_archive import extract
from espnet3.config.trust import PackedModelError

resource.setrlimit(resource.RLIMIT_AS, (300_000_000, 300_000_000))
for archive in sys.argv[1:]:
    try:
        extract(Path(archive))
        print("extracted", archive)
    except PackedModelError as error:
        print("refused", error)
    except BaseException as error:
        print("failed", archive, repr(error))
"""


def header(name, size, kind=tarfile.REGTYPE):
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    return entry.tobuf(tarfile.USTAR_FORMAT)


def with_pax_of(n_megabytes, kind=tarfile.XHDTYPE):
    """Yield a header that says much about a file."""
    yield header("x", n_megabytes * MEGABYTE, kind)
    yield from [b"0" * MEGABYTE] * n_megabytes


def large_header(kind):
    return lambda: with_pax_of(500, kind)


def many(entry):
    return lambda: (entry(number) for number in range(12_000))


def headers_without_end():
    for _ in range(30_000):
        yield header("x", 512, tarfile.XGLTYPE) + b"12 a=bcdefg\n".ljust(512, b"\0")


def long_names_without_end():
    for _ in range(30_000):
        yield header("x", 512, tarfile.GNUTYPE_LONGNAME) + b"a" * 512


def folders_in_folders():
    for number in range(2_000):
        yield header("/".join([str(number), *"abcdefghijklmnopqrst"]), 0)


def content():
    yield header("meta.yaml", 500 * MEGABYTE)
    yield from [bytes(MEGABYTE)] * 500


def pax(*records):
    text = b""
    for key, value in records:
        body = f" {key}={value}\n"
        length = len(body) + 2 if len(body) < 98 else len(body) + 3
        text += f"{length}{body}".encode()
    return header("x", len(text), tarfile.XHDTYPE) + text.ljust(512, b"\0")


TARS = {
    "a pax header of 500 MB": large_header(tarfile.XHDTYPE),
    "a global pax header of 500 MB": large_header(tarfile.XGLTYPE),
    "a long name of 500 MB": large_header(tarfile.GNUTYPE_LONGNAME),
    "a long link of 500 MB": large_header(tarfile.GNUTYPE_LONGLINK),
    "a header of Solaris of 500 MB": large_header(tarfile.SOLARIS_XHDTYPE),
    "pax headers without end": headers_without_end,
    "long names without end": long_names_without_end,
    "12,000 files": many(lambda i: header(f"m/{i}", 0)),
    "12,000 folders": many(lambda i: header(f"m/{i}/", 0, tarfile.DIRTYPE)),
    "12,000 times a folder": many(lambda i: header("m/", 0, tarfile.DIRTYPE)),
    "folders in folders": folders_in_folders,
    "one file": content,
    "a size in the pax header": lambda: [
        pax(("size", 2_000 * MEGABYTE)), header("a", 0), *([bytes(MEGABYTE)] * 300)
    ],
    "a negative size": lambda: [pax(("size", -512)), header("a", 0)],
    "a sparse file": lambda: [header("a", 512, tarfile.GNUTYPE_SPARSE), bytes(512)],
    "a sparse file by pax": lambda: [
        pax(("GNU.sparse.major", 1), ("GNU.sparse.realsize", 10**12)), header("a", 0)
    ],
    "a name twice": lambda: [header("a", 0), header("a", 0)],
    "a name twice but for case": lambda: [header("a", 0), header("A", 0)],
    "a file as a folder": lambda: [header("a", 0), header("a/b", 0)],
    "a deep path": lambda: [header("a/" * 40 + "b", 0)],
    "a long name": lambda: [pax(("path", "a" * 2_000)), header("x", 0)],
    "a path in the pax header": lambda: [pax(("path", "../evil")), header("x", 0)],
    "a control character": lambda: [header("a\nb", 0)],
    "a hard link": lambda: [header("a", 0, tarfile.LNKTYPE)],
    "a symbolic link": lambda: [header("a", 0, tarfile.SYMTYPE)],
    "a device": lambda: [header("a", 0, tarfile.CHRTYPE)],
    "a pipe": lambda: [header("a", 0, tarfile.FIFOTYPE)],
    "an unknown kind": lambda: [header("a", 0, b"Q")],
    "a pax header that is none": lambda: [header("x", 5, tarfile.XHDTYPE), b"hello".ljust(512)],
    "no tar": lambda: [b"hello" * 200],
    "half a file": lambda: [header("a", 1_000), b"x" * 10],
    "nothing after a header": lambda: [header("x", 60_000, tarfile.XHDTYPE)],
}  # fmt: skip


def write_tar(path, blocks):
    """Write blocks as a .gz of many members, so that equal large ones are compressed once."""
    packed = {}
    with path.open("wb") as file:
        for block in _joined(blocks):
            if block not in packed:
                packed[block] = gzip.compress(block, 1)
            file.write(packed[block])


def _joined(blocks):
    small = []
    for block in blocks:
        if len(block) < MEGABYTE:
            small.append(block)
        else:
            yield b"".join(small)
            small = []
            yield block
    yield b"".join(small)


def all_refused(folder, archives):
    """Extract in a process with little memory; nothing is left of them."""
    temporary = folder / "temporary"
    temporary.mkdir()
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, archives)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    lines = process.stdout.splitlines()
    assert len(lines) == len(archives)
    for archive, line in zip(archives, lines, strict=True):
        assert line.startswith("refused ")
        assert archive.name in line
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_large_tars_are_refused(tmp_path, every):
    refuse(tmp_path, [name for name in TARS if "500 MB" in name][::every])


def test_tars_that_are_refused(tmp_path):
    refuse(tmp_path, [name for name in TARS if "500 MB" not in name])


def refuse(tmp_path, names):
    archives = []
    for name in names:
        blocks = TARS[name]
        archives.append(tmp_path / f"{name}.tar.gz")
        write_tar(archives[-1], blocks())
        assert archives[-1].stat().st_size < 6 * MEGABYTE
    all_refused(tmp_path, archives)


def zip_of(**entries):
    """Return the writer of a zip, whose entries may have attributes of their own."""

    def write(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, (info, data) in entries.items():
                entry = zipfile.ZipInfo(name)
                for key, value in info.items():
                    setattr(entry, key, value)
                zipped.writestr(entry, data, entry.compress_type)

    return write


def many_files(path):
    with zipfile.ZipFile(path, "w") as zipped:
        for number in range(12_000):
            zipped.writestr(f"m/{number}", b"")


def two_of_a_name(path):
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("a", b"1")
        zipped.writestr("b", b"2")
    path.write_bytes(path.read_bytes().replace(b"b", b"a"))


def large_list(path):
    """Write a list of entries of 40 MB, which is read before the first of them."""
    entry = b"PK\x01\x02" + bytes(42)
    with path.open("wb") as file:
        for _ in range(40):
            file.write(entry * (MEGABYTE // len(entry)))
        size = file.tell()
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 9, 9, size, 0, 0))


def lies_about_its_size(path):
    zip_of(a=({"compress_type": zipfile.ZIP_DEFLATED}, bytes(120 * MEGABYTE)))(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<L", 120 * MEGABYTE), struct.pack("<L", 10)))


def encrypted(path):
    zip_of(a=({}, b"data"))(path)
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(bytes(data))


LINK = {"external_attr": (stat.S_IFLNK | 0o777) << 16}
ZIPS = {
    "one file": zip_of(a=({"compress_type": zipfile.ZIP_DEFLATED},
                                    bytes(120 * MEGABYTE))),
    "a lie about the size": lies_about_its_size,
    "12,000 files": many_files,
    "a name twice": two_of_a_name,
    "a list of 40 MB": large_list,
    "encrypted": encrypted,
    "compressed by LZMA": zip_of(a=({"compress_type": zipfile.ZIP_LZMA}, b"x" * 100)),
    "a symbolic link": zip_of(a=(LINK, b"/etc/passwd")),
    "a pipe": zip_of(a=({"external_attr": stat.S_IFIFO << 16}, b"")),
    "a path that leads out": zip_of(**{"../a": ({}, b"")}),
    "backslashes that lead out": zip_of(**{"..\\a": ({}, b"")}),
    "a drive": zip_of(**{"C:/a": ({}, b"")}),
    "a deep path": zip_of(**{"a/" * 40 + "b": ({}, b"")}),
    "no zip": lambda path: path.write_bytes(b"hello" * 100),
}  # fmt: skip


def test_zips_that_are_refused(tmp_path):
    archives = []
    for name, write in ZIPS.items():
        archives.append(tmp_path / f"{name}.zip")
        write(archives[-1])
    all_refused(tmp_path, archives)


def test_a_size_that_the_disk_does_not_have_is_told_first(tmp_path, monkeypatch):
    archive = tmp_path / "model.tar.gz"
    write_tar(archive, [header("a", 1_000), b"x" * 1024])
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(PackedModelError, match="export TMPDIR="):
        extract(archive)


def test_archives_of_other_programs_are_read(tmp_path):
    """Those of GNU tar, with long names, and with folders as entries."""
    long = "m/" + "folder/" * 20 + "x" * 120
    for format_ in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        with tarfile.open(tmp_path / "model.tgz", "w:gz", format=format_) as tar:
            folder = tarfile.TarInfo("./m")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            names = ["m/meta.yaml", "m/é" if format_ != tarfile.USTAR_FORMAT else "m/e"]
            for name in [*names, *([long] if format_ != tarfile.USTAR_FORMAT else [])]:
                entry = tarfile.TarInfo(name)
                entry.size = 700
                tar.addfile(entry, io.BytesIO(b"y" * 700))
        kept = extract(tmp_path / "model.tgz")
        for name in names:
            with open(os.path.join(kept.name, name), "rb") as file:
                assert file.read() == b"y" * 700
        kept.cleanup()


def test_an_ngram_that_unpacks_to_one_line_is_refused(tmp_path):
    path = tmp_path / "ngram.arpa.gz"
    write_tar(path, [b"\\data\\\n", *[b"x" * MEGABYTE] * 50])
    with pytest.raises(DataError, match="longer than"):
        NGram.read(path)
