"""Who owns the state: one broker at a time, by a lease in the catalogue's database. Others may stand by."""
