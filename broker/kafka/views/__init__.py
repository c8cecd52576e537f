"""Topics, groups, transactions, records and settings over HTTP: GETs that return plain dicts as JSON.

The routes run on handlers, through the admin lane. A view never holds a lock for longer than the copy of some fields takes, and
its work is bounded: lists come in pages, and figures beyond the bound are ``null``.
"""
