# What the agents of the budget assistant say.

welcome = Hi! Tell me what you bought, what you pay every month, what you want to put aside, or ask me for a plan.
goodbye = You are welcome. Your money is in good hands: yours.
what-about = Tell me a little more: did you spend something, do you pay it every month, shall we fill a jar, or would you like a plan?
refused = That is not possible at the moment. Shall we do something else?
to-transaction-classifier = About your spending: one moment.
to-jar-manager = The jars are just the thing for that.
to-fee-manager = Regular payments are best written down.
to-budget-advisor = A good moment to look at the whole picture.

advice-income = Let us make a plan. How much do you earn a month, after taxes?
advice-income-help = Look at last month's transfer from your employer; a rough figure is fine. How much was it?
advice-expense = And what is your largest expense?
advice-expense-noted = That one counts as a need, so we look at it first.
advice-plan = My proposal: { $needs } for what you need, { $wants } for what you want, and { $savings } to save, on the day the money comes in.

jar-amount = How much would you like to put aside every month?
jar-amount-help = Start small: what you would not miss in a week. How much is that?
jar-source = Which money shall it come from: your salary, or another jar?
jar-source-suggest = Then I suggest your salary, on the day it comes in, before you can spend it. All right?
jar-done = Done: a new jar that gets { $amount } every month.
jar-entry = Jar { $number }: { $amount } every month
jar-list = These are your jars:
    { $jars }
jar-none = You have no jars yet. Tell me what you would like to put money aside for.

fee-amount = How much is it every month?
fee-amount-help = It is on your bank statement, under its name. How much is it?
fee-day = { $amount } every month. On which day is it paid?
fee-day-help = Look at when it left your account last month. Which day was it?
fee-day-again = I need a day of the month, from 1 to 31. Which one is it?
fee-done = { $count ->
    [one] Noted: { $amount } on day { $day } of every month. That is your first regular payment here.
   *[other] Noted: { $amount } on day { $day } of every month. You have { $count } regular payments now.
}

spending-category = { $amount }. Was it a need or a want?
spending-category-help = Ask yourself whether you could have done without it: if so, it was a want. What was it?
spending-category-again = Just say “need” or “want”. Which was it?
spending-done-needs = Noted: { $amount } for what you need.
spending-done-wants = Noted: { $amount } for what you want. Enjoy it!
spending-total = You have told me of { $total } so far.
spending-to-fees = That comes back every month, so it belongs to your regular payments.
