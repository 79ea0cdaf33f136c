"""librdkafka's settings are translated for Java whole, or refused by name; no option holds a secret."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from faultline.installation.targets.java_kafka import (
    CA,
    ITS_OWN,
    KEYSTORE,
    MODULES,
    SAME,
    TRANSLATED,
    quoted,
    translated,
)
from faultline.system.errors import ConfigError
from tests.support.certificates import Authority

PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20).filter(
    lambda text: "${" not in text
)


def as_java_reads(text: str) -> str:
    """A quoted word as java.io.StreamTokenizer takes it, which reads JAAS files."""
    assert text[0] == text[-1] == '"'
    inner, found, escaped = text[1:-1], "", False
    for letter in inner:
        if escaped or letter != "\\":
            assert escaped or letter != '"', "the word ends early"
            found, escaped = found + letter, False
        else:
            escaped = True
    assert not escaped
    return found


@given(PRINTABLE)
def test_a_password_comes_to_java_as_it_was_given(password: str) -> None:
    assert as_java_reads(quoted(password, "sasl.password")) == password


@pytest.mark.parametrize("password", ["two\nlines", "a ${user.home} in it", "\x00"])
def test_what_a_jaas_file_cannot_hold_is_refused(password: str) -> None:
    with pytest.raises(ConfigError, match=r"^sasl\.password: "):
        quoted(password, "sasl.password")


@given(
    user=PRINTABLE,
    password=st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=12, max_size=40),
    mechanism=st.sampled_from(sorted(MODULES)),
    protocol=st.sampled_from(["SASL_PLAINTEXT", "SASL_SSL", "sasl_ssl"]),
    more=st.dictionaries(st.sampled_from(sorted(SAME | ITS_OWN)), st.just("7")),
)
def test_a_login_with_a_password_is_whole_and_no_option_holds_it(
    user: str, password: str, mechanism: str, protocol: str, more: dict[str, str]
) -> None:
    made = translated(
        {"security.protocol": protocol, "sasl.mechanisms": mechanism, "sasl.username": user,
         "sasl.password": password, **more}
    )  # fmt: skip
    assert made.options["security.protocol"] == protocol.upper()
    assert made.options["sasl.mechanism"] == mechanism
    assert made.jaas is not None and MODULES[mechanism] in made.jaas and f'password="{password}"' in made.jaas
    assert password not in json.dumps(dict(made.options))
    assert {name: "7" for name in more.keys() & SAME}.items() <= made.options.items()
    assert not made.options.keys() & ITS_OWN


@given(
    st.text(min_size=1, max_size=30).filter(lambda key: key not in {*TRANSLATED, *SAME, *ITS_OWN, "sasl.mechanisms"})
)
def test_a_key_without_a_translation_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        translated({key: "1"})
    said, _, remedy = str(refused.value).removeprefix(f"{key}: ").partition("; ")
    assert said == "Kafka's client in Spark has nothing like it"
    assert remedy == "leave it out" or remedy.startswith("did you mean ")


def test_a_key_that_is_mistyped_is_told_the_one_that_is_meant() -> None:
    with pytest.raises(ConfigError, match=r"^sasl\.usernme: .*; did you mean sasl\.username\?$"):
        translated({"sasl.usernme": "u"})


def test_a_certificate_and_its_key_become_one_file_that_java_reads_without_a_password() -> None:
    authority = Authority()
    own = authority.signed(password="of the key")
    made = translated(
        {
            "security.protocol": "SSL",
            "ssl.ca.pem": f"some words\n{authority.pem}",
            "ssl.certificate.pem": own.certificate,
            "ssl.key.pem": own.key,
            "ssl.key.password": "of the key",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert made.jaas is None
    assert made.options == {
        "security.protocol": "SSL",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{{folder}}/{CA}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{{folder}}/{KEYSTORE}",
    }
    assert made.files[CA] == authority.pem
    assert made.files[KEYSTORE].startswith("-----BEGIN PRIVATE KEY-----") and own.certificate in made.files[KEYSTORE]
    assert load_pem_private_key(made.files[KEYSTORE].encode(), None)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"security.protocol": "TLS"}, "security.protocol: TLS is not known; use PLAINTEXT, "),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism: GSSAPI cannot be used with "),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism: nothing cannot be used with "),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"}, "sasl.password: missing"),
        ({"security.protocol": "SSL", "ssl.ca.pem": "none"}, "ssl.ca.pem: holds no CERTIFICATE in PEM form"),
        ({"security.protocol": "SSL", "ssl.key.pem": "none"}, "ssl.certificate.pem: missing beside the other"),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}, "enable.ssl.certificate.verif"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_key_and_the_remedy(values: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        translated(values)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("password", "said"), [(None, "has a password, and none is given"), ("wrong", "cannot be read")]
)
def test_a_key_that_cannot_be_opened_is_refused(password: str | None, said: str) -> None:
    own = Authority().signed(password="right")
    given = {"security.protocol": "SSL", "ssl.certificate.pem": own.certificate, "ssl.key.pem": own.key}
    with pytest.raises(ConfigError, match=f"^ssl.key.p.*{said}"):
        translated(given if password is None else {**given, "ssl.key.password": password})
