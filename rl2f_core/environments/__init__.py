"""Environments: one file each.  `base.py` holds the contract."""
