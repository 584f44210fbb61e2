"""How a judgement is shown: terminal, Markdown, page, CSV, JSON and figures. This room imports no torch."""
