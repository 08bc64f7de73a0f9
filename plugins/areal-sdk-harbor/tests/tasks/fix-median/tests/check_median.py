import sys
import unittest

sys.path.insert(0, "/app")
from median import median


class Median(unittest.TestCase):
    def test_of_an_odd_number_of_values(self):
        assert median([9, 1, 5]) == 5

    def test_of_an_even_number_of_values(self):
        assert median([4, 1, 3, 2]) == 2.5

    def test_leaves_the_list_alone(self):
        numbers = [3, 1]
        median(numbers)
        assert numbers == [3, 1]


if __name__ == "__main__":
    unittest.main()
