"""What a child is given of the environment: what it needs, and no secret of the user's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.environment import PASSED, clean_environment

NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True)


@given(
    NAMES, st.sampled_from(["AWS_SECRET_ACCESS_KEY", "FAULTLINE_DATABASE", "FAULTLINE_ADMIN_PASSWORD", "PGPASSWORD"])
)
def test_what_is_not_named_stays_behind(name: str, secret: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"MY_{name}", "x")
        patch.setenv(secret, "hidden")
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://a:hidden@b/c")
        clean = clean_environment({"OWN": "1"})
        assert "hidden" not in str(clean) and f"MY_{name}" not in clean and clean["OWN"] == "1"
        assert "PATH" in clean


def test_what_the_user_passes_on_reaches_workloads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSED, "MY_KEY, MY_OTHER,MISSING")
    monkeypatch.setenv("MY_KEY", "1")
    monkeypatch.setenv("MY_OTHER", "2")
    monkeypatch.setenv("FAULTLINE_TOPOLOGY_DATABASE", "postgresql://a:b@c/d")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    usual, workload = clean_environment(), clean_environment(for_workload=True)
    assert set(workload) - set(usual) == {"MY_KEY", "MY_OTHER", "FAULTLINE_TOPOLOGY_DATABASE"}
    assert usual["LC_ALL"] == "C.UTF-8"
