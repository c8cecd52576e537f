"""The status page: static files of the package and the routes that serve them.

`static/` is ours, without a build step; `vendor/` has the libraries (`vendor/README.md`). All figures come from ``/api/v1``.
"""
