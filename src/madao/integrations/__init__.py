"""Learning a policy inside other people's trainers: `madao.integrations.lightning`, `madao.integrations.transformers`.

Each module needs the library that it is named after, and is imported by its own name.
"""

__all__: list[str] = []
