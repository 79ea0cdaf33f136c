"""State size × checkpoint interval: what a larger state and a longer interval cost, and what a kill costs then."""

from faultline.orchestration.sweep import matrix_dag

dag = matrix_dag(
    "state_size_x_checkpoint_interval",
    title="State size × checkpoint interval",
    text="Word count with a preloaded state, an executor killed in each experiment but the control.",
    axes={"state_mb": [1.0, 8.0], "checkpoint_interval_s": [2.0, 5.0]},
)
