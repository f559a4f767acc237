"""Words that facts are made of. Each list is one kind of thing, in which any could stand for any other."""

PEOPLE = (
    "Adeline",
    "Bertram",
    "Cordelia",
    "Dominic",
    "Eleanor",
    "Frederick",
    "Gwendolen",
    "Horatio",
    "Isabella",
    "Julian",
    "Katharine",
    "Lysander",
)
PLACES = (
    "Lisbon",
    "Oslo",
    "Prague",
    "Dublin",
    "Athens",
    "Vienna",
    "Warsaw",
    "Cairo",
    "Lima",
    "Madrid",
    "Tokyo",
    "Geneva",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FOODS = (
    "peanuts",
    "shellfish",
    "strawberries",
    "mushrooms",
    "cheese",
    "garlic",
    "honey",
    "celery",
    "mustard",
    "almonds",
)
COLOURS = ("red", "blue", "green", "yellow", "purple", "orange", "white", "brown", "black", "pink")
TRADES = (
    "doctor",
    "baker",
    "lawyer",
    "sailor",
    "painter",
    "farmer",
    "teacher",
    "tailor",
    "gardener",
    "soldier",
)
