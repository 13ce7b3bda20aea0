"""`espnet3 transcribe FILE_OR_FOLDER ...`: a model and audio, nothing else."""

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from espnet3.cli.console import UsageError, make_parser
from espnet3.cli.recipe_configs import RawLine
from espnet3.cli.recipe_options import parse_line
from espnet3.commands import free_name, override_key, replace_overrides, use_line
from espnet3.systems.base.stages import Detached, find_stage, stages_of
from espnet3.text import count, first_line

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.systems.asr.transcription import Transcript, TranscriptionRequest

logger = logging.getLogger(__name__)
_FORMATS = "text, jsonl, srt, vtt, ctm, textgrid"
_MOST_SHOWN = 20
_MOST_FAILURES = 3
_EPILOG = (
    "The same command again continues what was stopped. KEY.PATH=VALUE changes a setting of the "
    "inference config, such as parallel.n_workers=4, device=cuda:1 or "
    "'model.decoder={_target_: ...}'."
)


def transcribe(argv: Sequence[str]) -> int:
    """Decode audio with a model, write the texts, and score them if there are references.

    Returns:
        0 if all was recognised, 1 if some of the audio could not be.

    Raises:
        UsageError: the line is wrong.
        ConfigError: there is no such audio or model.
    """
    args, overrides = parse_line(_parser(), argv)
    request = _request(args, overrides)
    with use_line(_Line(("espnet3", "transcribe"), argv, request.output)):
        return _transcribe(request, argv, detach=args.detach)


@dataclass(frozen=True)
class _Line(RawLine):
    """The line that was typed: what is written elsewhere has another `--output`."""

    output: Path

    @override
    def again(self, overrides: Sequence[str], without: Sequence[str] = ()) -> list[str]:
        kept = [text for text in overrides if override_key(text) != "inference_dir"]
        words = [*self.program, *replace_overrides(self.arguments, kept, without)]
        if len(kept) == len(overrides):
            return words
        place = os.path.relpath(free_name(self.output))
        return [*_without_option("--output", words), "--output", place]

    @override
    def for_stages(self, stages: Sequence[str], overrides: Sequence[str] = ()) -> list[str]:
        return self.again(overrides)


def _without_option(name: str, words: Sequence[str]) -> list[str]:
    position = words.index(name) if name in words else len(words)
    rest = [*words[:position], *words[position + 2 :]]
    return [word for word in rest if not word.startswith(f"{name}=")]


def _transcribe(request: "TranscriptionRequest", argv: Sequence[str], *, detach: bool) -> int:
    from espnet3.logs import make_visible
    from espnet3.systems.asr.system import ASRSystem
    from espnet3.systems.asr.transcription import (
        failures,
        prepare,
        read_transcripts,
        write_transcripts,
    )
    from espnet3.systems.base.checks import check_stages

    make_visible()
    loaded = prepare(request)
    system = ASRSystem(inference=loaded)
    system.detach = detach
    check_stages(system, [find_stage(stages_of(ASRSystem), "infer")])
    result = system.infer()
    if isinstance(result, Detached):
        _say_what_comes_after(result, argv)
        return 0
    transcripts = list(read_transcripts(system.config_for("infer")))
    written = write_transcripts(transcripts, request.output, request.formats)
    _show(transcripts)
    for path in written:
        logger.info("Written: %s", path)
    _score(system.config_for("infer"))
    return int(_tell_failures(failures(system.config_for("infer"))))


def _tell_failures(failed: Mapping[Path, Sequence[Mapping[str, Any]]]) -> bool:
    """Say which audio has no text and why, as far as it fits; tell whether there is any."""
    for folder, items in failed.items():
        for item in items[:_MOST_FAILURES]:
            name = ", ".join(item["ids"]) or f"item {item['index']}"
            logger.warning("%s has no text: %s", name, first_line(item["error"]))
        see = shlex.join(["espnet3", "failed", os.path.relpath(folder)])
        logger.warning("%s could not be recognised. See: %s", count(len(items), "recording"), see)
    return bool(failed)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "transcribe",
        "Turn audio into text with a model, on this machine or a cluster.",
        usage="espnet3 transcribe FILE_OR_FOLDER ... [--model MODEL] [--output DIR] "
        "[--format FORMAT ...] [--parallel FILE ...] [--reference FILE] [--detach] [KEY=VALUE ...]",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="FILE_OR_FOLDER",
        help="audio, folders of it, a Kaldi data directory, a .jsonl or .tsv manifest; - reads a "
        "list of files from the standard input")  # fmt: skip
    add("--model", metavar="MODEL",
        help="exp/training, a packed model, a folder of Hugging Face, or a class such as "
        "src.model.MyModel (default: Moonshine for English, where it is installed)")  # fmt: skip
    add("--output", default="transcripts", metavar="DIR",
        help="for the texts, and what is needed to continue (default: transcripts)")  # fmt: skip
    add("--format", dest="formats", nargs="+", action="extend", default=[], metavar="FORMAT",
        help=f"one or several of {_FORMATS} (default: text)")  # fmt: skip
    add("--parallel", nargs="+", action="extend", default=[], metavar="FILE",
        help="where workers run: conf/parallel_slurm.yaml")  # fmt: skip
    add("--reference", metavar="FILE", help="lines of ID TEXT; the result is scored")
    add("--detach", action="store_true",
        help="leave the work to workers that continue without this program")  # fmt: skip
    return parser


def _request(args: argparse.Namespace, overrides: tuple[str, ...]) -> "TranscriptionRequest":
    from espnet3.systems.asr.transcription import TranscriptionRequest

    inputs = [name for word in args.inputs for name in (_from_stdin() if word == "-" else [word])]
    if not inputs:
        raise UsageError("the list on the standard input is empty.")
    return TranscriptionRequest(
        inputs=tuple(inputs),
        output=Path(args.output).absolute(),
        model=args.model,
        formats=tuple(dict.fromkeys(args.formats)) or ("text",),
        reference=Path(args.reference) if args.reference else None,
        parallel=tuple(args.parallel),
        overrides=overrides,
    )


def _from_stdin() -> list[str]:
    return [name for line in sys.stdin if (name := line.rstrip("\n"))]


def _say_what_comes_after(result: Detached, argv: Sequence[str]) -> None:
    folders = " ".join(shlex.quote(str(folder)) for folder in result.run_dirs)
    words = shlex.join(word for word in argv if word != "--detach")
    print(f"When it has ended: espnet3 wait {folders} && espnet3 transcribe {words}")


def _show(transcripts: "Sequence[Transcript]") -> None:
    """Print the texts if they are few: of one file the text alone, to be used in a pipe."""
    if len(transcripts) == 1:
        print(transcripts[0].text)
    elif len(transcripts) <= _MOST_SHOWN:
        for one in transcripts:
            print(f"{one.id}\t{one.text}")


def _score(loaded: "LoadedConfig") -> None:
    """Score test sets all of whose items have a text."""
    from espnet3.systems.asr.transcription import scoring_config
    from espnet3.systems.base.metric import measure

    if (metrics := scoring_config(loaded)) is not None:
        measure(metrics, loaded)
