"""Programs in any language that users name: started, spoken with over pipes, and ended."""
