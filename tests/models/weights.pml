/* SPDX-License-Identifier: Apache-2.0
 *
 * A place is filled with one expert, then with another (src/weights/): pages are asked for, one after the other, of two
 * sources. Proves that whatever is said to be whole is, though a source is passed over at any time and wakes later, the
 * first one dies at any time, also in the middle of a page, and the network spoils a page. And that it comes to an end.
 *
 *   taker: ask, number ──► source: writes the landing page ──► answer, number, sum of what it holds ──► taker: copies the
 *   landing page into the place, sums what lies there
 */
#ifndef PAGES
#define PAGES 2
#endif
#ifndef PASSES
#define PASSES 3 /* times that a source is passed over: odd, as the second one lives */
#endif
#ifndef SPOILT
#define SPOILT 1
#endif
#define EXPERTS 2
#define VALUE(expert, page) ((expert) * PAGES + (page) + 1)

byte landing;
byte place[PAGES];
byte nr_spoilt, nr_passed;
chan ask0 = [PASSES + SPOILT + 6] of { byte, byte, byte };
chan ask1 = [PASSES + SPOILT + 6] of { byte, byte, byte };
chan answer = [PASSES + SPOILT + 6] of { byte, byte };

/* ---- things made wrong ---- */

#ifdef BREAK_NO_SUM /* what has come is believed */
#define IS_RIGHT(lies, sum) true
#else
#define IS_RIGHT(lies, sum) ((lies) == (sum))
#endif

#ifdef BREAK_OLD_ANSWERS /* an answer to an ask before is taken for one to this */
#define IS_DUE(which) true
#else
#define IS_DUE(which) ((which) == number)
#endif

#ifdef BREAK_SUM_THE_SLOT /* the landing page is summed, and copied a step later */
#define TAKE lies = landing; place[page] = landing
#else
#define TAKE place[page] = landing; lies = place[page]
#endif

#ifdef BREAK_WRITE_THE_PLACE /* sources write into the place */
#define PUT(at, what) place[at] = what
#undef TAKE
#define TAKE lies = place[page]
#else
#define PUT(at, what) landing = what
#endif

#ifdef BREAK_WAIT_FOR_EVER /* for a source that has died */
#define MAY_PASS false
#else
#define MAY_PASS (nr_passed < PASSES)
#endif

active proctype taker()
{
	byte expert, page, number, source, which, sum, lies;

	do
	:: expert < EXPERTS ->
		page = 0;
		do
		:: page < PAGES ->
			number++;
			if
			:: source == 0 -> ask0 ! expert, page, number
			:: else -> ask1 ! expert, page, number
			fi;
			do
			:: answer ? which, sum ->
				if
				:: IS_DUE(which) ->
					TAKE;
					if
					:: IS_RIGHT(lies, sum) -> page++
					:: else
					fi;
					break
				:: else
				fi
			:: atomic { MAY_PASS -> nr_passed++; source = 1 - source; break }
			od
		:: else -> break
		od;
		/* it is whole, and stays so for as long as it is used */
		assert(place[0] == VALUE(expert, 0) && place[PAGES - 1] == VALUE(expert, PAGES - 1));
		assert(place[0] == VALUE(expert, 0) && place[PAGES - 1] == VALUE(expert, PAGES - 1));
		expert++
	:: else -> break
	od
}

/* Dies between any two of its steps. */
active proctype first()
{
	byte expert, page, number;

end:
	do
	:: ask0 ? expert, page, number ->
		if
		:: PUT(page, VALUE(expert, page))
		:: atomic { nr_spoilt < SPOILT -> PUT(page, 0); nr_spoilt++ }
		:: break
		fi;
		if
		:: answer ! number, VALUE(expert, page)
		:: break
		fi
	:: break
	od
}

active proctype second()
{
	byte expert, page, number;

end:
	do
	:: ask1 ? expert, page, number ->
		if
		:: PUT(page, VALUE(expert, page))
		:: atomic { nr_spoilt < SPOILT -> PUT(page, 0); nr_spoilt++ }
		fi;
		answer ! number, VALUE(expert, page)
	od
}
