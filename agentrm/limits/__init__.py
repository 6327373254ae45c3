"""Limits: what a provider allows, what it says about it, and what it answers when one asks for more."""
