"""Policies as people see them: pictures, tables for notebooks, figures."""
