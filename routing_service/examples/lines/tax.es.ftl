# Lo que dicen los agentes del asistente fiscal.

welcome = ¡Hola! Soy la coordinadora. Puedo ponerte con quien lleva la renta, el IVA, las facturas, las nóminas o la presentación. ¿De qué se trata?
goodbye = ¡De nada! Aquí estaré cuando me necesites.
what-about = No estoy segura de a quién avisar. ¿Es por la renta, el IVA, una factura, las nóminas o para presentar una declaración?
to-income-tax = Te paso con nuestro asesor de renta, que lo ve contigo.
to-vat = Para el IVA, nadie mejor que nuestra especialista. Te paso con ella.
to-invoices = Te paso con facturación, que tiene todas tus facturas a mano.
to-payroll = Te paso con nóminas, que lo prepara contigo.
to-filing = Te paso con presentación, que la envía por ti.
refused-entitled = Las nóminas las lleva nuestra especialista del plan premium, y tu plan no lo incluye. Puedo contarte cómo cambiar de plan, o ayudarte con otra cosa.
refused-channel = Eso solo se puede hacer desde la web. Ábrela y seguimos allí; mientras tanto puedo ayudarte con otra cosa.
refused-other = Ahora mismo no puedo pasarte con quien lleva eso. ¿Puedo ayudarte con otra cosa?
specialist-goodbye = ¡Un placer! Si surge algo más, pregunta sin más.

vat-ask-period = Vamos a ello. ¿Presentas el IVA cada mes o cada trimestre?
vat-ask-period-again = Solo necesito saber una cosa: ¿mensual o trimestral? Si no lo sabes, dímelo.
vat-period-guessed = No pasa nada: casi todos los negocios pequeños lo presentan cada trimestre, así que partimos de ahí.
vat-ask-sales = ¿Cuánto has vendido en ese periodo, sin IVA?
vat-sales-help = Suma la base de las facturas que has emitido; la tienes en tu libro de ingresos. Con una cifra aproximada basta: ¿cuánto sería?
vat-sales-again = Dime una cifra en euros, por ejemplo 12.000. ¿Cuánto has vendido?
vat-result = Con { $sales } de ventas, el IVA repercutido al 21 % es de { $vat }. De ahí restas el IVA de tus gastos. Pregúntame lo que quieras sobre plazos o sobre otro periodo.
vat-deadline-quarterly = El modelo 303 trimestral se presenta hasta el 20 de abril, de julio y de octubre, y el cuarto trimestre hasta el 30 de enero.
vat-deadline-monthly = El modelo 303 mensual se presenta hasta el día 30 del mes siguiente; el de enero, hasta el último día de febrero.

income-ask = Miremos si tienes que presentarla. ¿Cuánto ganaste el año pasado, en bruto y de un solo pagador?
income-help = Está en el certificado de retenciones que te da tu empresa. Si no lo tienes, doce nóminas en bruto valen. ¿Cuánto sale, más o menos?
income-again = Dime una cifra anual en euros, por ejemplo 24.000. ¿Cuánto fue?
income-due = Con { $income } pasas de { $floor }, así que te toca presentarla. El plazo va de abril al 30 de junio.
income-not-due = Con { $income } no llegas a { $floor }, así que no estás obligado, aunque puede salirte a devolver.
income-deductions = Lo más habitual: planes de pensiones, donativos, alquiler según tu comunidad y la vivienda comprada antes de 2013.
income-deadline = La campaña de la renta va de abril al 30 de junio.

invoice-ask = Claro. ¿Qué número tiene la factura? Suele empezar por F.
invoice-help = El número está arriba a la derecha, por ejemplo F-1023. ¿Lo ves?
invoice-paid = La factura { $number } está pagada desde el día 12. Queda archivada.
invoice-open = La factura { $number } sigue pendiente de cobro; le he enviado un recordatorio al cliente.

payroll-ask = ¿Para cuántas personas preparamos la nómina?
payroll-help = Cuenta a todos los que estuvieron de alta este mes. ¿Cuántos son?
payroll-ask-salary = ¿Y cuál es el sueldo bruto mensual de cada una?
payroll-salary-help = Es la cifra de su contrato dividida por el número de pagas. ¿Cuánto es al mes?
payroll-result = Listo: { $people } nóminas preparadas, con un neto de { $net } por persona.

filing-ask = ¿Qué declaración presento, la del IVA o la de la renta?
filing-confirm = Tengo el modelo { $form } preparado. ¿Lo presento ahora?
filing-confirm-again = Antes de seguir necesito un sí o un no: ¿presento el modelo { $form }?
filing-done = Presentado. Tienes el justificante del modelo { $form } en tu carpeta.
filing-not-done = De acuerdo, no presento nada. El borrador queda guardado.
