"""What all tests share: hypothesis profiles. The `broker` fixture comes with the package (broker/client/pytest_plugin.py)."""

import os

from hypothesis import HealthCheck, settings

# No deadlines anywhere: a shared or slow machine must not fail a test.
_slow_is_fine = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", deadline=None, suppress_health_check=_slow_is_fine)
# The same examples at every run, so that a red build is red for everybody.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=_slow_is_fine)
# By hand, before a release or after a change to a codec: HYPOTHESIS_PROFILE=deep make test
settings.register_profile("deep", deadline=None, max_examples=5000, suppress_health_check=_slow_is_fine)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
