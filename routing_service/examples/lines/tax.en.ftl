# What the agents of the tax assistant say.

welcome = Hello! I am the coordinator. I can connect you with the people for income tax, VAT, invoices, payroll or filing. What is it about?
goodbye = You are welcome! I am here whenever you need me.
what-about = I am not sure whom to call. Is it about income tax, VAT, an invoice, payroll, or filing a return?
to-income-tax = I am connecting you with our income tax advisor, who will look at it with you.
to-vat = Nobody knows VAT better than our specialist. I am connecting you.
to-invoices = I am connecting you with invoices, who have all of yours at hand.
to-payroll = I am connecting you with payroll, who will prepare it with you.
to-filing = I am connecting you with filing, who will send it off for you.
refused-entitled = Payroll is done by our specialist of the premium plan, and your plan does not include it. I can tell you how to change plans, or help you with something else.
refused-channel = That can only be done on the web. Open it and we go on there; meanwhile I can help you with something else.
refused-other = I cannot connect you with whoever does that just now. Can I help you with something else?
specialist-goodbye = My pleasure! If anything else comes up, just ask.

vat-ask-period = Let us see. Do you file VAT every month or every quarter?
vat-ask-period-again = There is one thing I need to know: monthly or quarterly? If you do not know, just say so.
vat-period-guessed = That is fine: almost every small business files by quarter, so we start from there.
vat-ask-sales = How much did you sell in that period, without VAT?
vat-sales-help = Add up the net amounts of the invoices you issued; they are in your income book. A rough figure will do: how much would it be?
vat-sales-again = Give me a figure in euros, such as 12,000. How much did you sell?
vat-result = With { $sales } of sales, the output VAT at 21 % is { $vat }. From that you take off the VAT on your expenses. Ask me anything about deadlines or another period.
vat-deadline-quarterly = The quarterly form 303 is due on 20 April, July and October, and for the fourth quarter on 30 January.
vat-deadline-monthly = The monthly form 303 is due on the 30th of the following month; January's on the last day of February.

income-ask = Let us see whether you have to file one. What did you earn last year, gross and from a single payer?
income-help = It is in the withholding certificate from your employer. If you do not have it, twelve gross payslips will do. How much is it, roughly?
income-again = Give me a yearly figure in euros, such as 24,000. How much was it?
income-due = With { $income } you are above { $floor }, so you have to file. The time for it is from April to 30 June.
income-not-due = With { $income } you are not above { $floor }, so you need not file, although you might get money back.
income-deductions = The most common ones: pension plans, donations, rent depending on your region, and a home bought before 2013.
income-deadline = Income tax returns are filed from April to 30 June.

invoice-ask = Of course. What is the invoice's number? It usually starts with an F.
invoice-help = The number is in the upper right corner, for example F-1023. Can you see it?
invoice-paid = Invoice { $number } was paid on the 12th. It has been filed away.
invoice-open = Invoice { $number } has not been paid yet; I have sent the customer a reminder.

payroll-ask = For how many people do we prepare the payroll?
payroll-help = Count everybody who was employed this month. How many are they?
payroll-ask-salary = And what is the gross monthly salary of each?
payroll-salary-help = It is the figure in their contract divided by the number of payments. How much is it a month?
payroll-result = Done: { $people } payslips prepared, { $net } net each.

filing-ask = Which return shall I file, VAT or income tax?
filing-confirm = I have form { $form } ready. Shall I file it now?
filing-confirm-again = Before we go on I need a yes or a no: shall I file form { $form }?
filing-done = Filed. The receipt of form { $form } is in your folder.
filing-not-done = All right, I file nothing. The draft is kept.
