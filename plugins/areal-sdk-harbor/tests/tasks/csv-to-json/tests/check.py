import json

with open("/data/prices.json") as file:
    rows = json.load(file)
assert rows == [{"name": "tea, green", "price": 3.5}, {"name": "bread", "price": 2.0}], rows
