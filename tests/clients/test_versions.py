"""The page of the server names the versions that are tried."""

import re
import tomllib

from clients.install import VERSIONS


def test_the_table_of_clients_has_the_versions_that_are_installed() -> None:
    page = (VERSIONS.parents[2] / "docs/serving.md").read_text()
    table = page.partition("### Clients\n")[2].partition("\n### ")[0]
    tables = tomllib.loads(VERSIONS.read_text()).values()
    installed = {version for versions in tables for version in versions.values()}
    said = set(re.findall(r"\b\d+\.\d[\d.]*\b", table))
    assert said
    assert said <= installed, said - installed
