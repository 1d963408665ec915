"""Measurements. They print and never assert."""
