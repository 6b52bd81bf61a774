# SPDX-License-Identifier: Apache-2.0
"""JWTs that are minted equal what Airflow's generator makes; what cannot be minted, the generator makes."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import jwt
import pytest
from airflow.api_fastapi.auth.tokens import JWKS, JWTGenerator, JWTValidator, generate_private_key

from dispatcher.dispatch import signing
from dispatcher.dispatch.minting import mint_of
from dispatcher.dispatch.signing import Signer

SECRET = "shared-" * 10
AUDIENCE = "urn:airflow.apache.org:task"
VALID_FOR = 1200.0
SUBJECT, TOKEN = str(uuid.uuid4()), str(uuid.uuid4())
EXTRAS = {"sub": SUBJECT, "scope": "workload", "launch_token": TOKEN}

SYMMETRIC = {
    "default": {},
    "issuer": {"issuer": "https://airflow.example"},
    "kid": {"kid": "key of 2026"},
    "no audience": {"audience": ""},
    "HS256": {"algorithm": "HS256"},
    "HS384": {"algorithm": "HS384"},
    "secret of other letters": {"secret_key": "Schlüssel" * 8},
}


def make_generator(**changes) -> JWTGenerator:
    return JWTGenerator(**{"valid_for": 600.0, "audience": AUDIENCE, "secret_key": SECRET} | changes)


def parts_of(token: str):
    """Return header and claims, both as pairs in their order, without what differs each time."""
    whole = jwt.decode_complete(token, options={"verify_signature": False})
    claims = whole["payload"]
    assert claims["jti"] == uuid.UUID(claims["jti"]).hex
    assert claims["nbf"] == claims["iat"]
    of_this = {"jti": None, "nbf": None, "iat": None, "exp": claims["exp"] - claims["iat"]}
    return list(whole["header"].items()), list((claims | of_this).items()), claims["iat"], claims["jti"]


def signed_by(generator, monkeypatch) -> str:
    """Return the JWT of a workload as a send signs it."""
    monkeypatch.setattr(signing, "subject_of", lambda _: SUBJECT)
    workload = SimpleNamespace(model_copy=lambda update: update["token"])
    return Signer(lambda: generator, VALID_FOR).sign(workload, TOKEN)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_what_is_minted_equals_what_the_generator_makes(name):
    generator = make_generator(**SYMMETRIC[name])

    mint = mint_of(generator, VALID_FOR)

    assert mint is not None
    minted, another = mint.make(EXTRAS), mint.make(EXTRAS)
    made = generator.generate(extras=EXTRAS, valid_for=VALID_FOR)
    header, claims, made_at, _ = parts_of(made)
    assert parts_of(minted)[:2] == (header, claims)
    assert abs(parts_of(minted)[2] - made_at) <= 1
    assert parts_of(minted)[3] != parts_of(another)[3]
    # To the byte: the claims of what the generator made, sealed again, are what it made.
    assert mint.seal(jwt.decode(made, options={"verify_signature": False})) == made


def test_the_secret_is_not_shown():
    assert SECRET not in repr(mint_of(make_generator(), VALID_FOR))


@pytest.mark.parametrize("issuer", [None, "https://airflow.example"])
def test_airflow_accepts_what_is_minted(issuer, monkeypatch):
    token = signed_by(make_generator(issuer=issuer), monkeypatch)

    validator = JWTValidator(secret_key=SECRET, audience=AUDIENCE, issuer=issuer, leeway=5)

    assert validator.validated_claims(token).items() >= EXTRAS.items()
    other = JWTValidator(secret_key="other" * 20, audience=AUDIENCE, issuer=issuer, leeway=5)
    with pytest.raises(jwt.InvalidSignatureError):
        other.validated_claims(token)


@pytest.mark.parametrize("key_type", ["RSA", "Ed25519"])
def test_with_a_private_key_the_generator_makes_them(key_type, monkeypatch):
    key = generate_private_key(key_type)
    generator = make_generator(secret_key=None, private_key=key, issuer="https://airflow.example")

    assert mint_of(generator, VALID_FOR) is None
    token = signed_by(generator, monkeypatch)

    assert parts_of(token)[:2] == parts_of(generator.generate(extras=EXTRAS, valid_for=VALID_FOR))[:2]
    jwks = JWKS.from_private_key(key)
    validator = JWTValidator(jwks=jwks, audience=AUDIENCE, issuer="https://airflow.example", leeway=5)
    assert validator.validated_claims(token).items() >= EXTRAS.items()


def test_claims_that_json_escapes_are_left_to_the_generator():
    assert mint_of(make_generator(issuer="https://airflow.example/é"), VALID_FOR) is None


def test_another_kind_of_generator_makes_them_itself(monkeypatch):
    class Other(JWTGenerator):
        def generate(self, *_, **__):
            return "made by it"

    generator = Other(valid_for=600.0, audience=AUDIENCE, secret_key=SECRET)

    assert mint_of(generator, VALID_FOR) is None
    assert signed_by(generator, monkeypatch) == "made by it"


def otherwise_made(claims=None, secret=SECRET):
    """Return a ``generate`` as a later version of Airflow may have it."""
    made = JWTGenerator.generate

    def generate(self, extras=None, headers=None, valid_for=None):
        token = made(self, {**(extras or {}), **(claims or {})}, headers, valid_for)
        whole = jwt.decode_complete(token, options={"verify_signature": False})
        return jwt.encode(whole["payload"], secret, algorithm="HS512", headers=whole["header"])

    return generate


@pytest.mark.parametrize(
    "change", [{"claims": {"tenant": "one"}}, {"secret": "derived" * 10}], ids=["a claim more", "another key"]
)
def test_a_generator_that_does_otherwise_is_noticed(change, monkeypatch):
    monkeypatch.setattr(JWTGenerator, "generate", otherwise_made())
    assert mint_of(make_generator(), VALID_FOR) is not None

    monkeypatch.setattr(JWTGenerator, "generate", otherwise_made(**change))
    assert mint_of(make_generator(), VALID_FOR) is None


def test_the_mint_changes_with_the_generator(monkeypatch):
    generators = [make_generator(kid="first"), make_generator(kid="second")]
    signer = Signer(lambda: generators[0], VALID_FOR)
    monkeypatch.setattr(signing, "subject_of", lambda _: SUBJECT)
    workload = SimpleNamespace(model_copy=lambda update: update["token"])

    kids = []
    while generators:
        kids += [jwt.get_unverified_header(signer.sign(workload, TOKEN))["kid"] for _ in range(2)]
        generators.pop(0)

    assert kids == ["first", "first", "second", "second"]
