"""The soak test of extension images: `PYTHONPATH=tests python -m support.soak.images --seconds 600`.

Four interpreters and main use every curated module that is installed, all at once, while other interpreters come and
go beside them. Everything that is worked out is checked; the last line of the output is a summary in JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from sglang_subgw.modes import images, interpreters
from support.soak import work

_INTERPRETERS = 4
_BESIDE_AT_MOST = 40
_MODULES_BESIDE = 5

_CODE = """
import sys
sys.path[:] = {path!r}
from sglang_subgw.modes import images
images.install(images.select("auto"), {copies!r})
try:
    import json
    from support.soak import work
    rounds = work.work({names!r}, {seconds}, {data!r})
    with open({out!r}, "w") as f:
        json.dump(rounds, f)
finally:
    images.release()
"""


class Soak:
    """One run."""

    def __init__(self, seconds: float, scratch: Path) -> None:
        self.seconds = seconds
        self.errors: list[str] = []
        self.rounds: dict[str, dict[str, int]] = {}
        self.beside = 0
        self._scratch = scratch
        self._copies = scratch / "copies"
        self._copies.mkdir()
        self._names = work.installed()
        self._deadline = time.monotonic() + seconds

    def run(self) -> None:
        """Everything at once."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        if "sentencepiece" in self._names:
            _train_sentencepiece(self._scratch / "soak.model")
        interpreters.preload()
        threads = [threading.Thread(target=self._long, args=(i,)) for i in range(_INTERPRETERS)]
        threads.append(threading.Thread(target=self._come_and_go))
        for thread in threads:
            thread.start()
        self._guarded("main", self._main)
        for thread in threads:
            thread.join()
        left = os.listdir(self._copies)
        if left:
            self.errors.append(f"copies left: {left}")

    def _main(self) -> None:
        self.rounds["main"] = work.work(self._names, self.seconds, str(self._scratch))

    def _long(self, index: int) -> None:
        # Each begins elsewhere, so that they meet in every combination.
        at = index * len(self._names) // _INTERPRETERS
        self._guarded(f"interpreter {index}", lambda: self._in_one(index, self._names[at:] + self._names[:at]))

    def _in_one(self, index: int, names: list[str]) -> None:
        self.rounds[f"interpreter {index}"] = self._interpret(f"long{index}", names, self.seconds)

    def _come_and_go(self) -> None:
        pause = max(0.2, self.seconds / _BESIDE_AT_MOST)
        while time.monotonic() < self._deadline and not self.errors:
            at = self.beside * _MODULES_BESIDE % len(self._names)
            names = (self._names * 2)[at : at + _MODULES_BESIDE]
            self._guarded(f"beside {self.beside} {names}", lambda names=names: self._interpret("beside", names, 0))
            self.beside += 1
            time.sleep(pause)

    def _interpret(self, name: str, names: list[str], seconds: float) -> dict[str, int]:
        out = self._scratch / f"{name}.json"
        interpreter = interpreters.create()
        try:
            interpreter.exec(
                _CODE.format(
                    path=list(sys.path),
                    copies=str(self._copies),
                    names=names,
                    seconds=seconds,
                    data=str(self._scratch),
                    out=str(out),
                )
            )
        finally:
            interpreter.close()
        return json.loads(out.read_text())

    def _guarded(self, who: str, act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException:
            self.errors.append(f"{who}: {traceback.format_exc()}")


def _train_sentencepiece(path: Path) -> None:
    import sentencepiece

    model = io.BytesIO()
    text = [f"hello world number {n}" for n in range(500)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=model, vocab_size=40, minloglevel=2, hard_vocab_limit=False
    )
    path.write_bytes(model.getvalue())


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    """Run it and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    seconds = parser.parse_args().seconds
    before = _resident()
    with tempfile.TemporaryDirectory() as scratch:
        soak = Soak(seconds, Path(scratch))
        soak.run()
    total = {name: sum(r[name] for r in soak.rounds.values()) for name in work.installed()}
    for error in soak.errors:
        print(error, file=sys.stderr)
    summary = {
        "errors": len(soak.errors),
        "interpreters": sorted(soak.rounds),
        "beside": soak.beside,
        "turns": total,
        "not installed": sorted(set(images.CURATED) - set(total)),
        "grown_mib": (_resident() - before) >> 20,
    }
    print(json.dumps(summary))
    return 1 if soak.errors else 0


if __name__ == "__main__":
    sys.exit(main())
