# Lo que dicen los agentes del asistente ERP, con supervisor y sin él.

welcome = ¡Hola! Puedo mirar existencias, compras, pedidos de clientes y facturas. ¿De qué se trata?
what-about = ¿Se trata de existencias, de una compra, de un pedido o de una factura?
goodbye = ¡Hasta luego!
refused = No puedo pasar esto. ¿Qué más puedo hacer por usted?
refused-system = El diario lo anota todo por sí mismo y no conversa. ¿Qué más puedo hacer por usted?
to-inventory = Inventario lo consulta.
to-purchasing = Compras se encarga de eso.
to-sales-orders = Aquí está el módulo de pedidos de clientes.
to-finance = Finanzas lo hace.

stock = Hay 12 { $item } en existencias: 8 en Hamburgo y 4 en Lyon.
stock-place = De { $item } hay 8 en Hamburgo.
stock-what = Conozco las existencias de cada artículo. ¿De cuál se trata?
no-item = artículos

purchase-when = Voy a pedir { $quantity } { $item }. ¿Para cuándo los necesita?
purchase-what = Yo hago los pedidos a proveedores. ¿Cuántos necesita?
purchase-done = Pedidos { $quantity } { $item } para «{ $day }».
purchase-unsure = Entonces pondré: lo antes posible. ¿Pido { $quantity } { $item }?

order = Pedido { $order }: 20 piezas azules para Acme, enviado el día 3.
order-back = Finanzas ha terminado con el pedido { $order }. ¿Qué más necesita de él?
order-which = ¿De qué pedido se trata? Basta con el número.

invoice-done = La factura del pedido { $order } está emitida y de camino al cliente.
invoice-which = ¿De qué pedido emito la factura? Basta con el número.
