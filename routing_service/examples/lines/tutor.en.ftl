# What the agents of the school tutor say.

welcome = Hello! Nice to see you. We can practise fractions or irregular English verbs. Which would you like?
goodbye = See you soon. You did well today!
what-about = I would love to help. Shall it be fractions, or irregular English verbs?
refused = That teacher is not here at the moment. Shall we try something else?
to-math-specialist = Fractions it is! Our math specialist is the right person; here you go.
to-language-specialist = Verbs it is! Our language specialist is looking forward to it; here you go.

lesson-right = Exactly right!
lesson-wrong = Not quite, but you are on the way.
lesson-off-topic = Good question! Let us keep it for after the lesson.
lesson-back = Good to have you back. Where were we?
lesson-frustrated = I can see that this is getting to you. Let us take a little break. [HANDOFF_TO:motivator]
lesson-complete = That was the last one, and you got it!

math-start = Let us add and take away fractions.
math-1 = What is 1/4 + 2/4?
math-1-hint = When the bottom numbers are the same, you only add the top ones: 1 + 2. So what is 1/4 + 2/4?
math-2 = What is 1/2 + 1/3?
math-2-hint = Make the bottom numbers the same first: 1/2 is 3/6, and 1/3 is 2/6. So what is 1/2 + 1/3?
math-3 = What is 3/4 - 1/4? Make it as short as you can.
math-3-hint = Take 1 away from 3, and leave the bottom number as it is. So what is 3/4 - 1/4?
math-test-1 = First question: what is 1/5 + 2/5?
math-test-2 = Second question: what is 3/4 - 1/2?

language-start = Irregular verbs have a past tense of their own.
language-1 = What is the past tense of “to eat”?
language-1-hint = It has three letters and sounds like the number eight. What is the past tense of “to eat”?
language-2 = What is the past tense of “to go”?
language-2-hint = It looks like quite another word and starts with a w. What is the past tense of “to go”?
language-3 = What is the past tense of “to write”?
language-3-hint = The i becomes an o. What is the past tense of “to write”?
language-test-1 = First question: what is the past tense of “to see”?
language-test-2 = Second question: what is the past tense of “to give”?

motivator-ask = Everybody gets stuck sometimes, and you have already come a long way. What is the hardest part for you?
motivator-encourage = That is the part everybody finds hard, and you have just put it into words: half the work is done. Back to your lesson, one step at a time!
motivator-again = You do not have to know. Take a deep breath, and back to your lesson, one step at a time!
motivator-pep = Stretch, look out of the window, count to ten. Ready? You are closer to the end than you think!

test-right = Correct!
test-wrong = The answer is { $answer }.
test-off-topic = Let us finish the test first, it is short.
test-frustrated = Tests are no fun. Somebody wants to have a word with you.
test-result = You got { $right } of { $questions } right. Well done for sticking with it!
