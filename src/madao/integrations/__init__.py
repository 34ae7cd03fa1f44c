"""Policies that learn inside the trainers of other libraries.

Each module needs the library that it is named after. Import it by its full name: `madao.integrations.lightning` or
`madao.integrations.transformers`.
"""

__all__: list[str] = []
