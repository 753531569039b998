"""Names of the data sets of reasoning-gym 0.1.25, listed here to validate one without importing the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

NAMES = tuple(
    """
    ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation
    binary_matrix bitwise_arithmetic caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio coin_flip
    color_cube_rotation complex_arithmetic count_bits count_primes countdown course_schedule cryptarithm
    decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships figlet_font
    fraction_simplification futoshiki game_of_life gcd group_anagrams gsm_symbolic intermediate_integration
    isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm leg_counting letter_counting
    letter_jumble list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid n_queens
    needle_haystack number_filtering number_format number_sequence number_sorting palindrome_generation
    palindrome_partitioning path_star polynomial_equations polynomial_multiplication pool_matrix power_function
    prime_factorization products puzzle24 quantum_lock ransom_note rearc rectangle_count rotate_matrix
    rotten_oranges self_reference sentence_reordering shortest_path simple_equations simple_geometry
    simple_integration sokoban spell_backward spiral_matrix string_insertion string_manipulation
    string_splitting string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder
    word_sequence_reversal word_sorting zebra_puzzles
    """.split()
)
if TYPE_CHECKING:
    Name = str
else:
    Name = Literal[NAMES]
UNUSABLE = {
    "composite": "it mixes other data sets; name one of them, or mix environments",
    **dict.fromkeys(
        ("graph_color", "rubiks_cube", "boxnet", "rush_hour", "propositional_logic"),
        "its entries have no answer to compare or to teach from",
    ),
    "game_of_life_halting": "its scorer gives full marks to any text at all",
}
"""Data sets that cannot be an environment, with the reason."""
