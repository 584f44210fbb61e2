def scale(x):
    return x * 0.5
