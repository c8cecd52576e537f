"""What the HTTP API shows of topics, groups, transactions, records and settings: GETs that return plain dicts as JSON.

The routes run on handlers, through the admin lane. A view never holds a lock for longer than the copy of some fields takes, and
its work is bounded whatever there is: lists come in pages, and a view that has no work left to spend says so (``null``).
"""
