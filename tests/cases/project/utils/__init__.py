def widths():
    return (64, 64)
