"""Authentication, authorization and quotas of clients, for all services. Knows no protocol and no socket."""
