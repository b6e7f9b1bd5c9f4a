/* Customers and orders by employee, as the manuals show it. */

call ml_add_connection_script( 'default', 'authenticate_user',
  '{ call check_user( {ml s.authentication_status}, {ml s.username}, {ml s.password}, {ml s.new_password} ) }' )
go

call ml_add_connection_script( 'default', 'begin_upload',
  'CREATE TEMP TABLE IF NOT EXISTS old_order ( order_id integer, quantity integer );
   CREATE TEMP TABLE IF NOT EXISTS new_order ( order_id integer, quantity integer );
   DELETE FROM old_order;
   DELETE FROM new_order' )
go

call ml_add_table_script( 'default', 'customer', 'upload_insert',
  'INSERT INTO customer ( cust_id, name, emp_id ) VALUES ( {ml r.cust_id}, {ml r.name}, {ml r.emp_id} );
   DELETE FROM customer_pool WHERE cust_id = {ml r.cust_id}' )
go
call ml_add_table_script( 'default', 'customer', 'upload_update',
  'UPDATE customer SET name = {ml r.name}, emp_id = {ml r.emp_id} WHERE cust_id = {ml o.cust_id}' )
go
call ml_add_table_script( 'default', 'customer', 'upload_delete',
  'UPDATE customer SET active = 0 WHERE cust_id = {ml r.cust_id}' )
go
call ml_add_table_script( 'default', 'customer', 'download_cursor',
  'SELECT cust_id, name, emp_id FROM customer
   WHERE last_modified >= {ml s.last_table_download} AND active = 1
     AND emp_id = ( SELECT emp_id FROM employee WHERE login = {ml s.username} )' )
go
call ml_add_table_script( 'default', 'customer', 'download_delete_cursor',
  'SELECT cust_id FROM customer
   WHERE last_modified >= {ml s.last_table_download}
     AND ( active = 0 OR emp_id <> ( SELECT emp_id FROM employee WHERE login = {ml s.username} ) )' )
go

call ml_add_table_script( 'default', 'orders', 'upload_insert',
  'INSERT INTO orders ( order_id, cust_id, quantity, status ) VALUES ( ?, ?, ?, ? )' )
go
call ml_add_table_script( 'default', 'orders', 'upload_update',
  'UPDATE orders SET cust_id = ?, quantity = ?, status = ?
   WHERE order_id = ? AND cust_id = ? AND quantity = ? AND status = ?' )
go
call ml_add_table_script( 'default', 'orders', 'upload_old_row_insert',
  'INSERT INTO old_order ( order_id, quantity ) VALUES ( {ml o.order_id}, {ml o.quantity} )' )
go
call ml_add_table_script( 'default', 'orders', 'upload_new_row_insert',
  'INSERT INTO new_order ( order_id, quantity ) VALUES ( {ml r.order_id}, {ml r.quantity} )' )
go
call ml_add_table_script( 'default', 'orders', 'resolve_conflict',
  '{ call resolve_order( ?, ? ) }' )
go
call ml_add_table_script( 'default', 'orders', 'upload_delete',
  'DELETE FROM orders WHERE order_id = ?' )
go
call ml_add_table_script( 'default', 'orders', 'download_cursor',
  'SELECT o.order_id, o.cust_id, o.quantity, o.status
   FROM orders o JOIN customer c ON c.cust_id = o.cust_id
   JOIN employee e ON e.emp_id = c.emp_id
   WHERE ( o.last_modified >= {ml s.last_table_download} OR c.last_modified >= {ml s.last_table_download} )
     AND c.active = 1 AND e.login = {ml s.username}' )
go
call ml_add_table_script( 'default', 'orders', 'download_delete_cursor', '--{ml_ignore}' )
go

call ml_add_connection_script( 'default', 'prepare_for_download',
  '{ call fill_pool( {ml s.username} ) }' )
go
call ml_add_table_script( 'default', 'customer_pool', 'upload_insert', '--{ml_ignore}' )
go
call ml_add_table_script( 'default', 'customer_pool', 'upload_delete',
  'DELETE FROM customer_pool WHERE cust_id = {ml r.cust_id}' )
go
call ml_add_table_script( 'default', 'customer_pool', 'download_cursor',
  'SELECT emp_id, cust_id FROM customer_pool
   WHERE last_modified >= {ml s.last_table_download}
     AND emp_id = ( SELECT emp_id FROM employee WHERE login = {ml s.username} )' )
go

call ml_add_table_script( 'default', 'stock_taking', 'upload_old_row_insert',
  'INSERT INTO happened ( event ) VALUES ( ''old '' || {ml o.item} || '' '' || {ml o.counted} )' )
go
call ml_add_table_script( 'default', 'stock_taking', 'upload_new_row_insert',
  'INSERT INTO stock_taken ( item, counted ) VALUES ( ?, ? )' )
go
call ml_add_table_script( 'default', 'stock_taking', 'download_cursor', '--{ml_ignore}' )
go
call ml_add_table_script( 'default', 'stock_taking', 'download_delete_cursor', '--{ml_ignore}' )
go

call ml_add_connection_script( 'default', 'handle_error',
  '{ call handle_sync_error( {ml s.action_code}, {ml s.error_code}, {ml s.error_message}, {ml s.username}, {ml s.table} ) }' )
go
call ml_add_connection_script( 'default', 'report_error',
  'INSERT INTO sync_error ( of_table, code, state ) VALUES ( {ml s.table}, {ml s.error_code}, {ml s.database_code} )' )
go
call ml_add_java_connection_script( 'default', 'end_connection', 'Orders.endConnection' )
go
