"""Which line of a log is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faultline.engines.spark.engine import ENGINE
from faultline.engines.supervised import last_words

# As Spark's driver logs what a Python worker raised: an exception of its own, with the worker's in its text, and more.
IN_A_WORKER = """\
2026-11-26T08:03:00.100Z WARN [x] TaskSetManager: Lost task 0.0: [PYTHON_EXCEPTION] An exception was thrown
  File "job.py", line 6, in f
ValueError: bad row 6
Traceback (most recent call last):
  File "running.py", line 71, in warm_up
    raise ValueError("bad row 7")
pyspark.errors.StreamingQueryException: [STREAM_FAILED] Query ended: Traceback (most recent call last):
    raise ValueError("bad row 7")
ValueError: bad row 7
 SQLSTATE: 38000
\tat org.apache.spark.SomeException.of(X.scala:1)
2026-11-26T08:03:01.545Z WARN [x] TaskSetManager: Lost task 1.3: TaskKilled (Stage cancelled: [PYTHON_EXCEPTION] An exc
2026-11-26T08:03:01.660Z INFO [x] SparkContext: bye
"""
BEFORE_ALL = """\
WARNING: Using incubator modules: jdk.incubator.vector
Traceback (most recent call last):
  File "job.py", line 3, in <module>
ModuleNotFoundError: No module named 'lightgbm'
2026-11-26T08:03:01.660Z ERROR [x] Utils: [SOME_ERROR.OF_IT] afterwards
"""
# Another query of the job's is ended with its JVM, and says so.
ANOTHER_AFTER = """\
Traceback (most recent call last):
  File "user_job.py", line 79, in require_as_told
user_job.JobError: query started 1 streaming query of its own
2026-11-27T17:27:24.486Z ERROR [stream execution thread] MicroBatchExecution: Query ended
java.lang.AssertionError: assertion failed
\tat scala.Predef$.assert(Predef.scala:264)
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ANOTHER_AFTER, "user_job.JobError: query started 1 streaming query of its own"),
        (IN_A_WORKER, "ValueError: bad row 7"),
        (BEFORE_ALL, "ModuleNotFoundError: No module named 'lightgbm'"),
        ("an Error\n[AN_ERROR.OF_A_CLASS] why\nan Exception\nbye\n", "[AN_ERROR.OF_A_CLASS] why"),
        # Java's own stands below no traceback.
        ("[AN_ERROR.OF_A_CLASS] why\njava.lang.IllegalStateException: no\n", "[AN_ERROR.OF_A_CLASS] why"),
    ],
)
def test_what_was_raised_is_told_before_what_spark_says_of_it(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "driver-0.log").write_text(text)
    assert last_words(tmp_path / "driver-0.log", ENGINE.error_line) == words


def test_who_has_no_line_of_an_error_class_says_the_last_error_or_line(tmp_path: Path) -> None:
    log, telling = tmp_path / "log", re.compile("TOLD")
    for text, words in (
        ("TOLD you\nbut an Error\n", "TOLD you"), ("one Exception\nbye", "one Exception"), ("bye\n\n", "bye"),
        ("", "(empty)"), ("x" * 400, "x" * 300),
    ):  # fmt: skip
        log.write_text(text)
        assert last_words(log, telling) == words


def test_a_log_that_was_never_written_is_no_error(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none", re.compile("x")) == "(no log)"
