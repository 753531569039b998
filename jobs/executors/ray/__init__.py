"""Ray Jobs as executor: each worker is a job of a cluster."""
