"""Policies that learn inside the trainers of other libraries.

Each module imports the library in its name. Import it by its full name: `madao.integrations.lightning` or
`madao.integrations.transformers`.
"""

__all__: list[str] = []
