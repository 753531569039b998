"""Numbers in eight languages, for the synthetic leak benchmark.

Made once with num2words 0.5.14, so that the benchmark's words come from elsewhere than the detectors' own tables.
"""

from __future__ import annotations

LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "ja")
SPOKEN: dict[int, tuple[str, ...]] = {
    37: (
        "thirty-seven", "siebenunddreißig", "trente-sept", "treinta y siete", "trentasette", "trinta e sete", "zevenendertig", "三十七",
    ),
    42: (
        "forty-two", "zweiundvierzig", "quarante-deux", "cuarenta y dos", "quarantadue", "quarenta e dois", "tweeënveertig", "四十二",
    ),
    46: (
        "forty-six", "sechsundvierzig", "quarante-six", "cuarenta y seis", "quarantasei", "quarenta e seis", "zesenveertig", "四十六",
    ),
    58: (
        "fifty-eight", "achtundfünfzig", "cinquante-huit", "cincuenta y ocho", "cinquantotto", "cinquenta e oito", "achtenvijftig", "五十八",
    ),
    63: (
        "sixty-three", "dreiundsechzig", "soixante-trois", "sesenta y tres", "sessantatré", "sessenta e três", "drieënzestig", "六十三",
    ),
    71: (
        "seventy-one", "einundsiebzig", "soixante et onze", "setenta y uno", "settantuno", "setenta e um", "eenenzeventig", "七十一",
    ),
    74: (
        "seventy-four", "vierundsiebzig", "soixante-quatorze", "setenta y cuatro", "settantaquattro", "setenta e quatro", "vierenzeventig", "七十四",
    ),
    79: (
        "seventy-nine", "neunundsiebzig", "soixante-dix-neuf", "setenta y nueve", "settantanove", "setenta e nove", "negenenzeventig", "七十九",
    ),
    85: (
        "eighty-five", "fünfundachtzig", "quatre-vingt-cinq", "ochenta y cinco", "ottantacinque", "oitenta e cinco", "vijfentachtig", "八十五",
    ),
    92: (
        "ninety-two", "zweiundneunzig", "quatre-vingt-douze", "noventa y dos", "novantadue", "noventa e dois", "tweeënnegentig", "九十二",
    ),
    96: (
        "ninety-six", "sechsundneunzig", "quatre-vingt-seize", "noventa y seis", "novantasei", "noventa e seis", "zesennegentig", "九十六",
    ),
    98: (
        "ninety-eight", "achtundneunzig", "quatre-vingt-dix-huit", "noventa y ocho", "novantotto", "noventa e oito", "achtennegentig", "九十八",
    ),
    103: (
        "one hundred and three", "einhundertdrei", "cent trois", "ciento tres", "centotré", "cento e três", "honderddrie", "百三",
    ),
    116: (
        "one hundred and sixteen", "einhundertsechzehn", "cent seize", "ciento dieciséis", "centosedici", "cento e dezasseis", "honderdzestien", "百十六",
    ),
    121: (
        "one hundred and twenty-one", "einhunderteinundzwanzig", "cent vingt et un", "ciento veintiuno", "centoventuno", "cento e vinte e um", "honderdeenentwintig", "百二十一",
    ),
    128: (
        "one hundred and twenty-eight", "einhundertachtundzwanzig", "cent vingt-huit", "ciento veintiocho", "centoventotto", "cento e vinte e oito", "honderdachtentwintig", "百二十八",
    ),
    132: (
        "one hundred and thirty-two", "einhundertzweiunddreißig", "cent trente-deux", "ciento treinta y dos", "centotrentadue", "cento e trinta e dois", "honderdtweeëndertig", "百三十二",
    ),
    147: (
        "one hundred and forty-seven", "einhundertsiebenundvierzig", "cent quarante-sept", "ciento cuarenta y siete", "centoquarantasette", "cento e quarenta e sete", "honderdzevenenveertig", "百四十七",
    ),
    154: (
        "one hundred and fifty-four", "einhundertvierundfünfzig", "cent cinquante-quatre", "ciento cincuenta y cuatro", "centocinquantaquattro", "cento e cinquenta e quatro", "honderdvierenvijftig", "百五十四",
    ),
    168: (
        "one hundred and sixty-eight", "einhundertachtundsechzig", "cent soixante-huit", "ciento sesenta y ocho", "centosessantotto", "cento e sessenta e oito", "honderdachtenzestig", "百六十八",
    ),
    176: (
        "one hundred and seventy-six", "einhundertsechsundsiebzig", "cent soixante-seize", "ciento setenta y seis", "centosettantasei", "cento e setenta e seis", "honderdzesenzeventig", "百七十六",
    ),
    183: (
        "one hundred and eighty-three", "einhundertdreiundachtzig", "cent quatre-vingt-trois", "ciento ochenta y tres", "centottantatre", "cento e oitenta e três", "honderddrieëntachtig", "百八十三",
    ),
    195: (
        "one hundred and ninety-five", "einhundertfünfundneunzig", "cent quatre-vingt-quinze", "ciento noventa y cinco", "centonovantacinque", "cento e noventa e cinco", "honderdvijfennegentig", "百九十五",
    ),
    264: (
        "two hundred and sixty-four", "zweihundertvierundsechzig", "deux cent soixante-quatre", "doscientos sesenta y cuatro", "duecentosessantaquattro", "duzentos e sessenta e quatro", "tweehonderdvierenzestig", "二百六十四",
    ),
    318: (
        "three hundred and eighteen", "dreihundertachtzehn", "trois cent dix-huit", "trescientos dieciocho", "trecentodicotto", "trezentos e dezoito", "driehonderdachttien", "三百十八",
    ),
    477: (
        "four hundred and seventy-seven", "vierhundertsiebenundsiebzig", "quatre cent soixante-dix-sept", "cuatrocientos setenta y siete", "quattrocentosettantasette", "quatrocentos e setenta e sete", "vierhonderdzevenenzeventig", "四百七十七",
    ),
    592: (
        "five hundred and ninety-two", "fünfhundertzweiundneunzig", "cinq cent quatre-vingt-douze", "quinientos noventa y dos", "cinquecentonovantadue", "quinhentos e noventa e dois", "vijfhonderdtweeënnegentig", "五百九十二",
    ),
    736: (
        "seven hundred and thirty-six", "siebenhundertsechsunddreißig", "sept cent trente-six", "setecientos treinta y seis", "settecentotrentasei", "setecentos e trinta e seis", "zevenhonderdzesendertig", "七百三十六",
    ),
}
"""For each number its words in the order of `LANGUAGES`."""
