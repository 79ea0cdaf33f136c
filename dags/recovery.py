"""Recovery: victim × checkpoint interval, state size as a parameter; the paper's failure tests."""

from faultline.orchestration.sweep import matrix_dag

dag = matrix_dag(
    "recovery",
    title="Recovery: what is killed × checkpoint interval",
    text="Word count in Python, so that one workload has every victim, with one kill in each experiment. `none` on "
    "the axis `fault` is a control at every interval, measured among the others.",
    axes={
        "fault": ["executor", "worker", "driver", "python_worker", "kafka", "none"],
        "checkpoint_interval_s": [2.0, 5.0],
    },
    # A driver needs some 30 s to start again, and as long to catch up.
    fixed={"workload": "word_count_python", "duration_s": 100.0},
    controls=0,
)
