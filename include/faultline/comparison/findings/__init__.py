"""The papers' findings, each held against records: does this measurement agree, disagree, or can it not tell?

`catalogue` names the claims of each matrix; `jiang`, `recovery` and `shi` hold them with their tests; `compare` says
what a few repetitions can tell.
"""
