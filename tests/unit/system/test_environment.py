"""What a child is given of the environment: what it needs, and no secret of the user's."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from faultline.system.environment import PASSED, check_passed, clean_environment
from faultline.system.errors import ConfigError

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


@given(st.text(st.sampled_from("ab \t\n\"\\';#%=,{}"), max_size=12) | st.text(max_size=12))
def test_what_is_passed_on_arrives_whole_or_is_refused_by_name(value: str) -> None:
    """Read by the means of what keeps the services."""
    from supervisor.datatypes import dict_of_key_value_pairs
    from supervisor.options import UnhosedConfigParser, expand

    assume("\0" not in value and value.encode(errors="ignore").decode() == value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSED, "MY_KEY")
        patch.setenv("MY_KEY", value)
        try:
            check_passed()
        except ConfigError as error:
            assert str(error).startswith("MY_KEY: ")
            return
    parser = UnhosedConfigParser()
    escaped = value.replace("%", "%%")
    parser.read_string(f'[program:x]\ncommand=x\nenvironment=MY_KEY="{escaped}"\n')
    read = expand(parser.saneget("program:x", "environment", "", do_expand=False), {}, "environment")
    assert dict_of_key_value_pairs(read) == {"MY_KEY": value}


@pytest.mark.parametrize("value", ['{"a": 1}', 'p"w', "two\nlines", "a # b"])
def test_what_would_be_cut_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_TOPOLOGY_DATABASE", value)
    with pytest.raises(ConfigError, match="FAULTLINE_TOPOLOGY_DATABASE: holds"):
        check_passed()
