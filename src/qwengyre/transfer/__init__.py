"""Transfers of weights and KV between cells."""
