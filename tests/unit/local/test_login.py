# SPDX-License-Identifier: Apache-2.0
"""The login of a local stack."""

from __future__ import annotations

import stat

from dispatcher.local.login import new_login, read_passwords, write_passwords


def test_what_is_written_is_read(tmp_path):
    login = new_login()

    write_passwords(tmp_path / "passwords", login)

    assert read_passwords(tmp_path / "passwords") == login
    assert stat.S_IMODE((tmp_path / "passwords").stat().st_mode) == 0o600


def test_passwords_are_random_and_not_shown():
    login = new_login()

    assert login != new_login()
    assert login.password not in repr(login)
