"""Word count: running counts of the words of a text or of a synthetic vocabulary."""

from __future__ import annotations

from typing import Any

from faultline.experiment.common_parameters import Common
from faultline.experiment.prerequisites import Prepared
from faultline.experiment.workloads.protocol import Parameters, Workload


class WordCount(Workload[Parameters]):
    """Count words over the whole input; one state row per distinct word, split by Spark columns."""

    name = "word_count"
    order = 10
    parameters = Parameters
    capabilities = frozenset({"preloaded_state", "words", "skewed", "real_time", "stateful"})
    program = "word_count"
    in_python = False

    def has_python_workers(self, own: Parameters) -> bool:
        return self.in_python

    def tuples(self, own: Parameters) -> dict[str, Any]:
        return {"tuples": "summed_words"}

    def program_configuration(self, prepared: Prepared, own: Parameters, common: Common) -> dict[str, Any]:
        return {"python": self.in_python}


class WordCountInPython(WordCount):
    """Count words as `word_count` does, with lines split in Python workers, which can then be victims."""

    name = "word_count_python"
    order = 11
    capabilities = WordCount.capabilities - {"real_time"}
    in_python = True


WORKLOADS = (WordCount(), WordCountInPython())
