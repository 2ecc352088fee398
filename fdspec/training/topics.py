# SPDX-License-Identifier: Apache-2.0
"""Subjects and openings from which a model writes its own prompts.

Owns two word lists and how a number picks from them. The subjects of held-out prompts are in none
of the training prompts.
"""

from __future__ import annotations

import random

_HELD_OUT_EVERY = 12
_WITH_SUBJECT = 0.6
_WITH_OPENING = 0.85

_SUBJECTS = """
lighthouses; glaciers; a village bakery; chess openings; beekeeping; electric cars;
the Roman army; coral reefs; job interviews; houseplants; volcanoes; learning the violin;
a lost dog; sourdough bread; the French Revolution; black holes; sorting algorithms;
time management; dragons; the water cycle; a broken bicycle; vegetarian cooking; public speaking;
the stock market; whales; medieval castles; sleep; a haunted house; photosynthesis;
a letter to a friend; budget travel; the human heart; robots; autumn; a detective; recycling;
the Silk Road; marathon training; newborn babies; databases; a pirate ship; solar panels; poetry;
earthquakes; kitchen knives; the Olympic Games; a talking cat; fractions; small gardens;
mountain climbing; online privacy; the moon; wooden furniture; a school play; desert animals;
headaches; the printing press; neural networks; a birthday party; fishing; clouds;
old photographs; inflation; a train journey; vaccines; origami; Greek myths; a rainy day;
unit tests; tea; the solar system; friendship; a magician; bridges; food allergies; jazz music;
penguins; a small business; the Vikings; maps; winter clothes; prime numbers; a secret garden;
remote work; the immune system; pottery; bad weather; a lonely robot; football; electricity;
the Amazon rainforest; moving house; dinosaurs; a cup of coffee; climate change; meditation;
web servers; forests; ancient Egypt; a job application; butterflies; the speed of light; camping;
a new neighbour; sculpture; habits; triangles; the stomach; a wizard's apprentice;
public libraries; street food; wolves; gravity; a difficult customer; yoga; the Cold War; rivers;
card games; a time machine; savings accounts; bicycles; mushrooms; e-mail etiquette; stars;
a shy child; cheese; loops; the Renaissance; knitting; an island; noise; a hospital visit;
probability; horses; city parks; anxiety; steam engines; spelling; deep sea fish; weddings;
a thunderstorm; running shoes; owls; team meetings; the number zero; a spaceship; salads;
the Great Wall of China; memory; toothache; regular expressions; a farmer; comets; handwriting;
rice; lullabies; insurance; the Industrial Revolution; a clumsy knight; skin care; atoms; birds;
a science fair; painting walls; the heart of a city; swimming; a vegetable garden; metaphors;
traffic; bacteria; a king without a crown; phone batteries; snow; world religions; chocolate;
a résumé; the nervous system; trees; an argument between friends; spreadsheets; sharks;
photography; a desert island; magnets; the Middle Ages; pasta; a scientist; hurricanes; guitars;
recursion; first aid; a bookshop; rainbows; diet; the Wright brothers; a lonely whale;
interest rates; ants; the theatre; a lost key; calculus; rain; human rights; dogs;
a mountain village; viruses; a speech for a wedding; compilers; the ocean; sustainable fashion;
a young inventor; taxes; sound waves; mythology; kittens; working from home; a wise grandmother;
satellites; the periodic table; hiking; a stolen painting; software bugs; elephants;
a language course; the Sahara; teamwork; nutrition labels; tigers; algebra; circuses;
a message in a bottle; the brain; exams; architecture; wind turbines; a ghost; cloud computing;
juggling; bees; volunteering; the history of writing; stress; a fox and a crow; paper; genes;
coffee shops; a dance class; the Sun; debts; cold soup; git; opera; a family reunion; plastics;
the Moon landing; posture; a tiny dragon; linear equations; parrots; hotel reviews; courage;
diamonds; a garden gnome; email newsletters; the Internet; muscle pain; tides; gratitude;
an old clock; frogs; screen time; the Mediterranean; a treasure map; data privacy; honesty;
cucumbers; machine learning; a night train; ballet; dust; apples
"""

_OPENINGS = """
How do I learn about; How can I understand; What is special about; What are the main facts about;
Why do people like; Explain; Explain to a child what you know about; Write a short story about;
Write a poem about; Write a Python program about; Write an email about; Give me ideas for;
List five things about; List the steps for; Describe; Compare two kinds of;
Summarize the history of; Can you help me with; Can you explain; Tell me about;
I want to learn more about; I need advice on; I am writing an essay on; My friend asked me about;
Is it true that; What would happen if; Create a plan for; Make a list for; Suggest a book about;
Write a speech about; Give me three facts about; What does it mean to; Who discovered;
When did people first learn about; Where can I find; Imagine a world of; Write a dialogue about;
What are some tips for; Please write about; Should I worry about; Which mistakes are common with;
Invent a game about; Give an example of; Discuss the role of; Define; Write a letter about;
Plan a lesson about; How does one begin with; How would you describe; In one paragraph, describe;
Write the opening of a novel about; What is the difference between; Write a song about;
Give a short introduction to; What are the benefits of; What is the best way to handle
"""


def _words(text: str) -> tuple[str, ...]:
    words = (" ".join(word.split()) for word in text.split(";"))
    return tuple(dict.fromkeys(words))


SUBJECTS = _words(_SUBJECTS)
OPENINGS = _words(_OPENINGS)


def opening_words(number: int, seed: int, *, held_out: bool) -> str:
    """First words of the user's turn of prompt `number`, which may be none at all.

    Args:
        number: 0, 1, ...
        seed: of the whole data set; equal arguments give equal words.
        held_out: take a subject that no training prompt is given.
    """
    chooser = random.Random(f"{seed} {number} {held_out}")
    rest = [s for i, s in enumerate(SUBJECTS) if (i % _HELD_OUT_EVERY == 0) == held_out]
    subject, opening = chooser.choice(rest), chooser.choice(OPENINGS)
    form = chooser.random()
    if form < _WITH_SUBJECT or held_out:
        return f"{opening} {subject}"
    return opening if form < _WITH_OPENING else ""
