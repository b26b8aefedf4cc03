# What the agents of the ERP assistant say, with a supervisor and without.

welcome = Hello! I can look into stock, purchases, customers' orders and invoices. What is it about?
what-about = Is it about stock, a purchase, a customer's order or an invoice?
goodbye = Goodbye!
refused = I cannot hand this over. What else can I do for you?
refused-system = The journal writes everything down by itself; it takes no conversation. What else can I do for you?
to-inventory = Inventory will look it up.
to-purchasing = Purchasing takes care of that.
to-sales-orders = Here is the module for customers' orders.
to-finance = Finance will do that.

stock = There are 12 { $item } in stock: 8 in Hamburg, 4 in Lyon.
stock-place = Of the { $item }, 8 are in Hamburg.
stock-what = I know the stock of every item. Which one is it?
no-item = items

purchase-when = I will order { $quantity } { $item }. By when do you need them?
purchase-what = I order from suppliers. How many do you need?
purchase-done = Ordered { $quantity } { $item } for delivery by “{ $day }”.
purchase-unsure = Then I will say: as soon as possible. Shall I order { $quantity } { $item }?

order = Order { $order }: 20 blue widgets for Acme, shipped on the 3rd.
order-back = Order { $order } is done with finance. What else about it?
order-which = Which order is it? Its number will do.

invoice-done = The invoice for order { $order } is issued and on its way to the customer.
invoice-which = For which order shall I issue the invoice? Its number will do.
