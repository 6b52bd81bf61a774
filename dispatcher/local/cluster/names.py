# SPDX-License-Identifier: Apache-2.0
"""The rules for names, labels and annotations. Each function returns what is wrong, in Kubernetes' words."""

from __future__ import annotations

import re

LABEL_LENGTH = 63
SUBDOMAIN_LENGTH = 253
ANNOTATIONS_BYTES = 256 * 1024

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_ENVIRONMENT = r"[-._a-zA-Z][-._a-zA-Z0-9]*"
_DATA_KEY = r"[-._a-zA-Z0-9]+"


def dns_label_faults(value: str) -> list[str]:
    """Judge the name of a namespace or a container."""
    text = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'"
    return _faults(value, _DNS_LABEL, LABEL_LENGTH, text)


def subdomain_faults(value: str) -> list[str]:
    """Judge the name of a pod or a secret."""
    text = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
    return _faults(value, _SUBDOMAIN, SUBDOMAIN_LENGTH, text)


def label_key_faults(value: str) -> list[str]:
    """Judge the key of a label or an annotation: an optional prefix with a slash, and a name."""
    prefix, slash, name = value.rpartition("/")
    if "/" in prefix:
        return [
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', "
            "with an optional DNS subdomain prefix and '/'"
        ]
    faults = [f"prefix part {fault}" for fault in subdomain_faults(prefix)] if slash else []
    if not name:
        return [*faults, "name part must be non-empty"]
    text = "must consist of alphanumeric characters, '-', '_' or '.'"
    return [*faults, *(f"name part {fault}" for fault in _faults(name, _QUALIFIED, LABEL_LENGTH, text))]


def label_value_faults(value: str) -> list[str]:
    """Judge the value of a label; it may be empty."""
    text = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
    return _faults(value, f"({_QUALIFIED})?", LABEL_LENGTH, text)


def environment_name_faults(value: str) -> list[str]:
    """Judge the name of an environment variable."""
    if re.fullmatch(_ENVIRONMENT, value):
        return []
    return ["a valid environment variable name must consist of letters, digits, '_', '-' or '.'"]


def data_key_faults(value: str) -> list[str]:
    """Judge a key of a secret's data."""
    if re.fullmatch(_DATA_KEY, value):
        return []
    return ["a valid config key must consist of alphanumeric characters, '-', '_' or '.'"]


def _faults(value: str, pattern: str, length: int, text: str) -> list[str]:
    faults = []
    if len(value) > length:
        faults.append(f"must be no more than {length} characters")
    if not re.fullmatch(pattern, value):
        faults.append(f"{text}, and must start and end with an alphanumeric character (regex '{pattern}')")
    return faults
