"""From rows and a problem to a solution and its report."""
